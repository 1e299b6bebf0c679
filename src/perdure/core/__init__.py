"""Values and laws: what a run is and which moves it may make. No I/O, no clock reads."""
