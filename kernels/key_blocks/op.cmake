hyscale_op(key_blocks SOURCES key_blocks.cpp)
