// Package seed pins the images of revisions to the digests of a lock before nodes claim them.
package seed
