package resolve

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"reflect"
	"slices"
	"time"

	"github.com/containerd/log"
	"github.com/sirupsen/logrus"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

const (
	// maxLogged is the maximum length, in bytes, of the message and the fields of one log entry of containerd's
	// resolver. The resolver logs what a registry returns, including headers.
	maxLogged = 3 << 10
	// maxMessage is the part of maxLogged that the message may use.
	maxMessage = 1 << 10
	// cutField is the field with the number of omitted fields.
	cutField = "fields.cut"
)

// withRedactedLog sets a logger for containerd's resolver that redacts all values with [redact], and then logs them
// with the logger of ctx. The resolver logs the errors of every host that it tries.
//
// The logger of ctx formats and writes the entries with its own hooks and settings, which can change meanwhile. A
// change of its level applies from the next request on.
func withRedactedLog(ctx context.Context) context.Context {
	to := log.G(ctx)
	logger := &logrus.Logger{
		Out:          io.Discard,
		Formatter:    unformatted{},
		Hooks:        make(logrus.LevelHooks),
		Level:        to.Logger.GetLevel(),
		ReportCaller: to.Logger.ReportCaller,
		ExitFunc:     to.Logger.Exit,
	}
	logger.AddHook(forwardHook{to.Logger})
	entry := to.Dup()
	entry.Logger = logger
	return log.WithLogger(ctx, entry)
}

// unformatted is the formatter of a logger that writes nothing itself.
type unformatted struct{}

func (unformatted) Format(*logrus.Entry) ([]byte, error) { return nil, nil }

// forwardHook is a hook that redacts every entry and logs it with another logger.
type forwardHook struct {
	to *logrus.Logger
}

func (forwardHook) Levels() []logrus.Level { return logrus.AllLevels }

func (h forwardHook) Fire(e *logrus.Entry) error {
	clean := e.Dup()
	clean.Logger = h.to
	message := imagepin.Bound(redact(e.Message), maxMessage)
	clean.Data = cleanFields(e.Data, maxLogged-len(message))
	clean.Log(e.Level, message)
	return nil
}

// field is a redacted log field.
type field struct {
	key   string
	value any
	size  int // key and value, in bytes
}

// cleanFields redacts fields and limits their total size to room bytes. It shortens or omits the largest fields.
func cleanFields(data logrus.Fields, room int) logrus.Fields {
	fields := make([]field, 0, len(data))
	for key, value := range data {
		value, size := cleanValue(value)
		fields = append(fields, field{key, value, len(key) + size})
	}
	slices.SortFunc(fields, func(a, b field) int {
		return cmp.Or(cmp.Compare(a.size, b.size), cmp.Compare(a.key, b.key))
	})
	clean := make(logrus.Fields, len(fields))
	for i, f := range fields {
		if f.size > room {
			f.value = imagepin.Bound(fmt.Sprint(f.value), max(room-len(f.key), 0))
			if len(f.key) >= room {
				clean[cutField] = len(fields) - i
				break
			}
			f.size = room
		}
		clean[f.key] = f.value
		room -= f.size
	}
	return clean
}

// cleanValue redacts the value of a field. It converts values other than text, numbers, times and errors to text.
func cleanValue(value any) (clean any, size int) {
	switch v := value.(type) {
	case nil:
		return nil, 0
	case time.Time:
		return v, len(time.RFC3339Nano)
	case error:
		err := RedactError(v)
		return err, len(err.Error())
	}
	text := fmt.Sprint(value)
	if kind := reflect.TypeOf(value).Kind(); kind >= reflect.Bool && kind <= reflect.Complex128 {
		return value, len(text)
	}
	text = imagepin.Bound(redact(text), maxLogged)
	return text, len(text)
}
