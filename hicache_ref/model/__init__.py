"""A small decoder over the device pool: it proves that the bytes a cache brings are those that were computed.

`scaling.scale` shrinks a model of the catalogue, `decoder.random_model` or `decoder.load_model` gives it weights,
`runner.Runner` runs rows of tokens over a pool, `decoder.shard` cuts it for ranks, `eagle.Eagle` drafts and verifies.
"""
