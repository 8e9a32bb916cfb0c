hyscale_op(moe_permute SOURCES moe_permute.cpp moe_permute.cu)
