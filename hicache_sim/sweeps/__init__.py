"""Many replays, one answer: which flags to set, and what each buys.

`hicache_sim.sweep(...)` and `hicache sweep` both run a `study.Study`. From question to answer:

    ask         one replay's full question         knobs, domains   what may vary, and over what
    search      which settings to try next         engines          where replays run
    point       one replay, in a worker            journal          what is done, safe against a kill
    metrics     figures of a point                 judge            settings, Pareto front, limits, the best
    effects     what each knob does                worth            flags to set, and what each buys
    api, files, tables, plots                      the result
"""
