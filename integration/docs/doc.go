// Package docs runs the commands in the documents of the repository and compares their output with what the documents
// show. The package transcript describes how a document marks them.
//
// IMAGEPIN_UPDATE_DOCS=1 (make docs-output) writes the output of the run into the documents instead.
package docs
