"""Whether nodes can be trusted with a step: which groups to run, what their results prove. No node is touched here."""
