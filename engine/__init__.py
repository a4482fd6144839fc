"""What both workers share: blocks, batches, model, sampler. Knows no network.

``engine.api``, ``engine.layout``, ``engine.pool_memory`` and ``engine.port`` import no torch: the io process uses them.
"""
