mod quorum;
