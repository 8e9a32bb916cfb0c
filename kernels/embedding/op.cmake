hyscale_op(embedding SOURCES embedding.cpp embedding.cu)
