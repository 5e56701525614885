"""Inference engines behind one interface: token ids in, sampled ids and their log-probs out."""
