import { createRequire } from 'node:module'
import { expect, it } from 'vitest'
import { createKafkaJs } from '#shared/broker/kafka/classic/client.ts'
import type { KafkaOptions } from '#shared/broker/kafka/options.ts'

/** Function of kafkajs that creates the error for an error code of the protocol, so that the test uses the original messages. */
const { createErrorFromCode } = createRequire(import.meta.url)('kafkajs/src/protocol/error') as {
  createErrorFromCode(code: number): Error
}

it('the kafkajs log adapter drops temporary errors of single requests, and forwards all others', () => {
  const told: unknown[] = []
  const onProblem = (_: string, fields: object) => told.push(fields)
  const kafka = createKafkaJs({ clientId: 'test', brokers: ['127.0.0.1:1'], onProblem } as unknown as KafkaOptions)
  const connection = kafka.logger().namespace('Connection')
  // The first four errors are temporary and must not be reported: COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR, REBALANCE_IN_PROGRESS and
  // TOPIC_ALREADY_EXISTS. The last one, TOPIC_AUTHORIZATION_FAILED, must be reported.
  for (const code of [14, 16, 27, 36, 29]) {
    connection.error('Response GroupCoordinator(key: 10, version: 1)', { error: createErrorFromCode(code).message })
  }
  connection.error('Connection error: connect ECONNREFUSED 127.0.0.1:1', {})
  kafka.logger().namespace('Consumer').error('Crash: KafkaJSGroupCoordinatorNotFound', { error: 'gone' })
  expect(told).toEqual([
    expect.objectContaining({ namespace: 'Connection', detail: createErrorFromCode(29).message }),
    expect.objectContaining({ namespace: 'Consumer', detail: 'gone' }),
  ])
})
