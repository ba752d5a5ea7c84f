package escrowmq

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// ErrInvalidSignature says that a webhook was not signed with one of the secrets, or not within
// five minutes of now. Do not act on it.
var ErrInvalidSignature = errors.New("invalid webhook signature")

const tolerance = 5 * time.Minute

// Verify checks the signature of a webhook (Standard Webhooks) over its raw body, and returns its
// webhook-id, which is the same on every try. During a rotation give both secrets.
func Verify(secrets []string, header http.Header, body []byte, now time.Time) (string, error) {
	id, stamp := header.Get("Webhook-Id"), header.Get("Webhook-Timestamp")
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil || id == "" || now.Sub(time.Unix(seconds, 0)).Abs() > tolerance {
		return "", ErrInvalidSignature
	}
	for _, secret := range secrets {
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
		if err != nil || len(key) == 0 {
			return "", errors.New("a webhook secret is whsec_ and base64")
		}
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + stamp + "."))
		mac.Write(body)
		expected := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
		for _, given := range strings.Fields(header.Get("Webhook-Signature")) {
			if hmac.Equal([]byte(given), []byte(expected)) {
				return id, nil
			}
		}
	}
	return "", ErrInvalidSignature
}
