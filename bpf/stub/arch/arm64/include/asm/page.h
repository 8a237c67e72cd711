#ifndef PAGE_SIZE
#define PAGE_SIZE 4096UL
#endif
