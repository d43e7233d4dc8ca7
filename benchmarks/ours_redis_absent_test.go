//go:build !redisstore

package benchmarks_test

func ourRedis() []redisSubject { return nil }

func ourRedisWithoutDenyCache() []redisSubject { return nil }
