package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/containerd/errdefs"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

var (
	authentication = schema.GroupVersion{Group: "authentication.k8s.io", Version: "v1"}
	reviews        = resource{path: "/apis/authentication.k8s.io/v1", name: "selfsubjectreviews", kind: "SelfSubjectReview"}
)

// selfSubjectReview has the fields that are used here of the SelfSubjectReview of k8s.io/api/authentication/v1. In its
// response, the API server says who the client is.
type selfSubjectReview struct {
	metav1.TypeMeta `json:",inline"`
	Status          struct {
		UserInfo user `json:"userInfo"`
	} `json:"status"`
}

// DeepCopyObject implements runtime.Object.
func (r *selfSubjectReview) DeepCopyObject() runtime.Object {
	c := *r
	return &c
}

// user is the user of a credential.
type user struct {
	Username string              `json:"username"`
	Extra    map[string][]string `json:"extra,omitempty"`
}

const (
	// nodeUser begins the user name of a node (system:nodes in k8s.io/apiserver/pkg/authentication/user).
	nodeUser = "system:node:"
	// serviceAccountUser begins the user name of a service account.
	serviceAccountUser = "system:serviceaccount:"
	// nodeNameKey is the extra field with the node of a token (NodeNameKey in
	// k8s.io/apiserver/pkg/authentication/serviceaccount).
	nodeNameKey = "authentication.kubernetes.io/node-name"
)

// node returns the name of the node that a user is, or that its token is bound to.
func (u user) node() (string, error) {
	if name, ok := strings.CutPrefix(u.Username, nodeUser); ok && name != "" {
		return name, nil
	}
	if !strings.HasPrefix(u.Username, serviceAccountUser) {
		return "", fmt.Errorf("its user %q is not a node", imagepin.Bound(u.Username, 256))
	}
	if names := u.Extra[nodeNameKey]; len(names) == 1 && names[0] != "" {
		return names[0], nil
	}
	return "", fmt.Errorf("its user %q is a service account, and the token is not bound to a node", imagepin.Bound(u.Username, 256))
}

// identity is the user of a credential, once the API server has been asked.
type identity = atomic.Pointer[user]

// node returns the name of the node, which the credential proves. It asks the API server once for each state of the
// files.
func (s *session) node(ctx context.Context) (string, error) {
	u := s.identity.Load()
	if u == nil {
		review := &selfSubjectReview{}
		req := s.rest.Post().AbsPath(reviews.path).Resource(reviews.name).Body(&selfSubjectReview{})
		err := s.do(ctx, req, review)
		if err == nil && review.Status.UserInfo.Username == "" {
			err = errors.New("it answered without a user")
		}
		if err != nil {
			return "", s.explain(err, "get the user of the credential", getUser)
		}
		u = &review.Status.UserInfo
		s.identity.Store(u)
	}
	name, err := u.node()
	if err != nil {
		return "", &imagepin.Error{
			Reason: imagepin.ClusterUnavailable, Class: errdefs.ErrUnavailable,
			Message: fmt.Sprintf("the credential in %s is not that of a node: %v", s.kubeconfig, err),
			Hint:    "Use the kubeconfig of the node's kubelet.",
		}
	}
	return name, nil
}
