hyscale_op(block_pool SOURCES block_pool.cpp block_pool.cu)
