hyscale_op(selection_pack SOURCES selection_pack.cpp selection_pack.cu)
