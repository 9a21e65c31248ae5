"""What 3FS needs around its file: who has which page (table, metadata, server), and how bytes get there (drivers)."""
