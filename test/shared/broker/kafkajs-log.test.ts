import { createRequire } from 'node:module'
import { expect, it } from 'vitest'
import { createKafkaJs } from '#shared/broker/kafka/classic/client.ts'
import type { KafkaOptions } from '#shared/broker/kafka/options.ts'

/** kafkajs' own message for an error of the protocol. */
const { createErrorFromCode } = createRequire(import.meta.url)('kafkajs/src/protocol/error') as {
  createErrorFromCode(code: number): Error
}

it("the kafkajs log adapter forwards all errors except the expected one of a new group's coordinator", () => {
  const told: unknown[] = []
  const onProblem = (_: string, fields: object) => told.push(fields)
  const kafka = createKafkaJs({ clientId: 'test', brokers: ['127.0.0.1:1'], onProblem } as unknown as KafkaOptions)
  const connection = kafka.logger().namespace('Connection')
  // Error codes: COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR and TOPIC_AUTHORIZATION_FAILED.
  for (const code of [14, 15, 16, 29]) {
    connection.error('Response GroupCoordinator(key: 10, version: 1)', { error: createErrorFromCode(code).message })
  }
  kafka.logger().namespace('Consumer').error('Crash: KafkaJSGroupCoordinatorNotFound', { error: 'gone' })
  expect(told).toEqual([
    expect.objectContaining({ namespace: 'Connection', detail: createErrorFromCode(29).message }),
    expect.objectContaining({ namespace: 'Consumer', detail: 'gone' }),
  ])
})
