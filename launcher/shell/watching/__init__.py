"""How far training processes are and where they stand: what they tell, who looks, and what is seen when one hangs."""
