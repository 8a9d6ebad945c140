"""Episodes over many images: features and their cache, ranks, memory."""
