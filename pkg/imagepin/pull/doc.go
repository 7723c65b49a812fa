// Package pull makes keys ready.
//
// A pull goes down these steps, each of which is one file:
//
//	resolve   which digest does the reference mean?      (package resolve)
//	verify    do the image verifier plugins allow it?    verify.go
//	choose    which manifest is the target's?            choose.go
//	fetch     what is missing, and unpack it             transfer.go
//	record    the records and the key's label            record.go, package store
//	show      wait until the CRI service behind knows    job.go, which goes down them
//
// Everything between the first blob and the record is held by a lease of the
// pull's own (lease.go), so that a pull that fails, is cancelled or is killed
// leaves nothing.
package pull
