hyscale_op(ngram_hash SOURCES ngram_hash.cpp ngram_hash.cu)
