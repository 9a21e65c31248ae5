"""HiCache on real memory: replay traces through real pools, copies, stores and a model."""
