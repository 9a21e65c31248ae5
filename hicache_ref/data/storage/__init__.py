"""L3's clients: one file a store, one interface for all (`client`), found by name (`registry`)."""
