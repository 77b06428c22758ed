"""The preprocess benchmark: generated text, tokenizers of others on it, ours, and what each costs."""
