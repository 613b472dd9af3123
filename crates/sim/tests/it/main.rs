mod roaming;
