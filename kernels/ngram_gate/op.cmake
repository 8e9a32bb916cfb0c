hyscale_op(ngram_gate SOURCES ngram_gate.cpp ngram_gate.cu)
