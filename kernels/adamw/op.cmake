hyscale_op(adamw SOURCES adamw.cpp adamw.cu DEPENDS hyscale_elementwise)
