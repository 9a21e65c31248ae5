"""Tensor parallel ranks on one machine: a process each, one event log, the same decisions everywhere."""
