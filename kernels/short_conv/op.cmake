hyscale_op(short_conv SOURCES short_conv.cpp short_conv.cu)
