"""`kvferry plan`: what fits, how many run at once, what a hand-over costs; said before anything is loaded."""
