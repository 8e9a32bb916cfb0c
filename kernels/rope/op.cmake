hyscale_op(rope SOURCES rope.cpp rope.cu)
