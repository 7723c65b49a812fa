package apply

// checkOwner accepts all files: on Windows, the access list of the directory decides who can write there.
func checkOwner(string, string) error { return nil }
