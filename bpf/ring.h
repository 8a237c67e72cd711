/* The ring that every record goes to. Nobody is woken: the reader comes by timer and drains all there is. */

BPF_RINGBUF_OUTPUT(events, RING_PAGES);
