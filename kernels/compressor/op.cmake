hyscale_op(compressor SOURCES compressor.cpp compressor.cu)
