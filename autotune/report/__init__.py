"""A page about everything that a database holds: `numbers` computes, `charts` draws, `page` writes."""
