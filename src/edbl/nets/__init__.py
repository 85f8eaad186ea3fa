"""Networks: backbones, heads, and the two together."""
