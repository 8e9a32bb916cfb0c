hyscale_op(muon SOURCES muon.cpp muon.cu)
