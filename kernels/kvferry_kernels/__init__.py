"""Operations of a decoder layer over a paged KV cache: compiled ones for the CPU, and a torch twin of each."""
