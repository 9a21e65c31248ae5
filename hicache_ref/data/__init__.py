"""The cache's bytes: pools of KV pages, and what moves them. Needs torch; the simulator never imports it."""
