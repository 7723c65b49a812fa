package upstream

import "regexp"

// Texts in errors that have no type of their own, or whose type does not cross containerd's socket.
const (
	// ManifestTooLarge is in the error of the resolver for a manifest of more than docker.MaxManifestSize, with the class of a
	// tag that does not exist.
	ManifestTooLarge = " byte manifest for " // core/remotes/docker/resolver.go: Resolve
	// InvalidDigest is in the error of the resolver for a host that answers with another header than a registry.
	InvalidDigest = "not a valid digest" // core/remotes/docker/resolver.go: Resolve
	// NoHostAccepted distinguishes an error of a fetch that no host has answered from one while a host sends content.
	NoHostAccepted = "httpReadSeeker: failed open" // core/remotes/docker/httpreadseeker.go: reader
	// ExtractingLayer begins the error of a layer that could not be unpacked: the node is the cause, or the layer.
	ExtractingLayer = "failed to extract layer" // core/unpack/unpacker.go: unpack
	// The image is malformed: pulling it again does not help, and content on the node may be damaged.
	WrongDiffID  = "wrong diff id"                            // core/unpack/unpacker.go: unpack
	LayerCount   = "number of layers and diffIDs don't match" // core/unpack/unpacker.go: unpack
	ZeroSize     = "reports content size of zero"             // core/remotes/handlers.go: Fetch
	NegativeSize = "reports negative content size"            // core/remotes/handlers.go: Fetch, since 2.3
	// Aborted is the error of a layer that is not unpacked because another one failed: it says nothing.
	Aborted = "aborted" // core/unpack/unpacker.go: unpack
	// MessageTooLarge is in the error of a message that its receiver does not allow, and of one that its sender does not:
	// google.golang.org/grpc/stream.go: SendMsg
	MessageTooLarge = "larger than max" // google.golang.org/grpc/rpc_util.go: recvMsg
)

var wrongDigest = regexp.MustCompile(`unexpected commit digest [a-z0-9]+:[0-9a-f]+, expected ([a-z0-9]+:[0-9a-f]+)`)

// ExpectedDigest returns the digest of the blob whose content was wrong, if that is the text of an error; otherwise "". imagepin
// fetches such a blob in another way. plugins/content/local/writer.go: Commit
func ExpectedDigest(text string) string {
	if found := wrongDigest.FindStringSubmatch(text); found != nil {
		return found[1]
	}
	return ""
}
