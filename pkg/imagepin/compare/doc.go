// Package compare compares two digests of a repository: the layers and the configuration of their images for each
// platform. It reads only indexes, manifests and configurations, and writes nothing.
package compare
