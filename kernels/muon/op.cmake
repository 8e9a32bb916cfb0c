hyscale_op(muon SOURCES muon.cpp muon.cu DEPENDS hyscale_elementwise)
