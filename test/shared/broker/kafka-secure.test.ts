/** Tests with a Kafka that requires TLS, client certificates, SASL and ACLs, using both Kafka clients. */
import { afterAll, beforeAll, describe, expect, inject, it, onTestFinished, vi } from 'vitest'
import type { Topic } from '#shared/broker/broker.ts'
import { connectionOf, tokenProvider } from '#shared/broker/kafka/credentials.ts'
import { openKafkaBroker } from '#shared/broker/kafka/kafka.ts'
import { parseConfig } from '#shared/config/config.ts'
import { newId } from '#shared/lib/id.ts'
import { whyNoLocalKafka } from '../../support/processes/kafka.ts'
import { type SecureKafka, startSecureKafka, startTokenEndpoint } from '../../support/processes/secure-kafka.ts'
import { until } from '../../support/stack.ts'

const missing = inject('kafka') === null ? 'no Kafka' : await whyNoLocalKafka()
const HOUR_MS = 3_600_000
const JOBS: Topic = { name: 'jobs', partitions: 1, retentionMs: HOUR_MS, retentionMsMin: HOUR_MS, kind: 'queue' }
const EVENTS: Topic = { name: 'events', partitions: 1, retentionMs: HOUR_MS, retentionMsMin: HOUR_MS, kind: 'channel' }
const CLIENTS = ['share', 'classic'] as const
const MECHANISMS = ['PLAIN', 'SCRAM-SHA-256', 'SCRAM-SHA-512', 'OAUTHBEARER'] as const
const never = new AbortController().signal

let kafka: SecureKafka
let tokens: Awaited<ReturnType<typeof startTokenEndpoint>>
beforeAll(async () => {
  if (missing !== undefined) return
  tokens = await startTokenEndpoint()
  kafka = await startSecureKafka()
})
afterAll(async () => {
  await kafka?.[Symbol.asyncDispose]()
  await tokens?.[Symbol.asyncDispose]()
})

interface Settings {
  readonly [name: string]: string | undefined
}

/** Settings of a process that logs in as `user`. The password of each user is the user's name. */
function settingsOf(mechanism: string, user: string): Settings {
  const { ca, cert, key } = kafka.files
  return {
    KAFKA_BROKERS: kafka.address,
    ...{ KAFKA_SSL_CA: ca, KAFKA_SSL_CERT: cert, KAFKA_SSL_KEY: key },
    ...{ KAFKA_SASL_MECHANISM: mechanism, KAFKA_USERNAME: user, KAFKA_PASSWORD: user },
    ...(mechanism === 'OAUTHBEARER' && { KAFKA_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL: tokens.url }),
  }
}

function open(client: 'share' | 'classic', settings: Settings, prefix = `${newId('t', 8)}.`, problems: string[] = []) {
  const config = parseConfig(settings).kafka
  if (!config) throw new Error('KAFKA_BROKERS is missing')
  return openKafkaBroker({
    ...connectionOf(config),
    ...{ brokers: config.brokers, client, prefix, topics: [JOBS, EVENTS], clientId: 'test' },
    onProblem: (message, fields) => problems.push(`${message} ${JSON.stringify(fields)}`),
  })
}

/** Sends one record through a queue and one through a channel, and returns the received texts. */
async function roundTrip(broker: Awaited<ReturnType<typeof open>>): Promise<string[]> {
  const received: string[] = []
  const receiver = await broker.receive('events', [0], ({ value }) => received.push(String(value)))
  const queue = await broker.openQueue('jobs')
  await broker.submit('jobs', Buffer.from('job'))
  await broker.send('events', 0, 'key', Buffer.from('event'))
  await until(
    async () => {
      for (const delivery of await queue.take(10, never)) {
        received.push(String(delivery.value))
        delivery.acknowledge()
      }
      return received.length === 2
    },
    { withinMs: 60_000 },
  )
  await receiver.close()
  await queue.close()
  await broker.close()
  return received.sort()
}

describe.skipIf(missing !== undefined)('Kafka with TLS, client certificates and SASL', { timeout: 120_000 }, () => {
  it.each(CLIENTS.flatMap((client) => MECHANISMS.map((mechanism) => [client, mechanism] as const)))(
    'carries jobs and events (%s, %s)',
    async (client, mechanism) => {
      expect(await roundTrip(await open(client, settingsOf(mechanism, 'sluice')))).toEqual(['event', 'job'])
    },
  )
})

describe.skipIf(missing !== undefined)('Kafka with ACLs', { timeout: 120_000 }, () => {
  it.each(['share', 'classic'] as const)(
    'requires only the ACL operations that docs/operate/operations.md lists (%s)',
    async (client) => {
      const prefix = `${newId('t', 8)}.`
      const isShare = client === 'share'
      const [first, daily] = [settingsOf('PLAIN', 'fleet'), settingsOf('PLAIN', 'daily')]
      await kafka.allow('fleet', prefix, ['READ', 'WRITE', 'CREATE'], ['READ'])
      if (isShare) await kafka.allow('fleet', prefix, [], ['DESCRIBE_CONFIGS', 'ALTER_CONFIGS'])
      expect(await roundTrip(await open(client, first, prefix))).toEqual(['event', 'job'])
      await kafka.allow('daily', prefix, ['READ', 'WRITE', 'DESCRIBE_CONFIGS'], ['READ'])
      if (isShare) await kafka.allow('daily', prefix, [], ['DESCRIBE_CONFIGS'])
      expect(await roundTrip(await open(client, daily, prefix))).toEqual(['event', 'job'])
    },
  )

  it('makes the start fail if a share group lacks ACLs, and names these ACLs', async () => {
    const prefix = `${newId('t', 8)}.`
    await kafka.allow('fleet', prefix, ['READ', 'WRITE', 'CREATE'], ['READ'])
    await expect(open('share', settingsOf('PLAIN', 'fleet'), prefix)).rejects.toThrow(
      new RegExp(`kafka-acls.sh .*--operation DescribeConfigs .*--group ${prefix} --resource-pattern-type prefixed`),
    )
  })

  it('reports the ACL that a classic group lacks, and delivers records once an operator adds the ACL', async () => {
    const prefix = `${newId('t', 8)}.`
    const problems: string[] = []
    await kafka.allow('fleet', prefix, ['READ', 'WRITE', 'CREATE'], [])
    const broker = await open('classic', settingsOf('PLAIN', 'fleet'), prefix, problems)
    const queue = broker.openQueue('jobs')
    await until(() => problems.some((problem) => problem.includes('--operation Read --group')), { withinMs: 60_000 })
    // The test now permits the consumer to join its group. The consumer must join without a restart.
    await kafka.allow('fleet', prefix, [], ['READ'])
    await broker.submit('jobs', Buffer.from('job'))
    await until(async () => (await (await queue).take(1, never)).length === 1, { withinMs: 60_000 })
    await broker.close()
  })
})

describe.skipIf(missing !== undefined)('the credentials for Kafka', () => {
  it.each([
    [
      'a client without a certificate',
      { KAFKA_SSL_CERT: '', KAFKA_SSL_KEY: '' },
      /client certificate[\s\S]*KAFKA_SSL_CERT/,
    ],
    [
      'an unknown certificate authority',
      { KAFKA_SSL_CA: 'otherCa' },
      /certificate of Kafka is not trusted.*KAFKA_SSL_CA/,
    ],
    [
      'a wrong client secret',
      { KAFKA_SASL_MECHANISM: 'OAUTHBEARER', KAFKA_PASSWORD: 'wrong' },
      /gives no token.*answered 401/,
    ],
    [
      'a token endpoint that does not answer',
      { KAFKA_SASL_MECHANISM: 'OAUTHBEARER', KAFKA_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL: 'http://127.0.0.1:1/' },
      /token endpoint for Kafka does not answer/,
    ],
  ] as const)('make the start fail with the problem and the remedy for %s', async (_, wrong, sentence) => {
    const oauth = { KAFKA_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL: tokens.url }
    const settings = { ...settingsOf('PLAIN', 'sluice'), ...oauth, ...wrong } as Record<string, string>
    if (settings.KAFKA_SSL_CA === 'otherCa') settings.KAFKA_SSL_CA = kafka.files.otherCa
    for (const client of CLIENTS) {
      const error = await open(client, settings).catch((thrown: unknown) => thrown)
      const { message, remediation } = (error as { cause: { message: string; remediation: string } }).cause
      expect(`${client}: ${message} ${remediation}`).toMatch(sentence)
    }
  })

  it('of all connections are one shared OAuth token', async () => {
    await using endpoint = await startTokenEndpoint()
    const provide = tokenProvider({ username: 'sluice', password: 'sluice', tokenUrl: endpoint.url, scope: 'kafka' })
    const [first, second] = await Promise.all([provide(), provide()])
    expect([second, await provide()]).toEqual([first, first])
    expect(endpoint.requests.map(({ body }) => body)).toEqual(['grant_type=client_credentials&scope=kafka'])
  })

  it('include a token that is renewed before it expires', async () => {
    await using endpoint = await startTokenEndpoint(1)
    const provide = tokenProvider({ username: 'sluice', password: 'sluice', tokenUrl: endpoint.url, scope: undefined })
    await provide()
    await until(async () => (await provide()) && endpoint.requests.length > 1, { withinMs: 30_000 })
  })

  it('include a token that is used until it expires if the token endpoint is unreachable', async () => {
    await using endpoint = await startTokenEndpoint(100)
    const provide = tokenProvider({ username: 'sluice', password: 'sluice', tokenUrl: endpoint.url, scope: undefined })
    const clock = vi.spyOn(performance, 'now')
    onTestFinished(() => clock.mockRestore())
    clock.mockReturnValue(1_000)
    const first = await provide()
    endpoint.isAway = true
    clock.mockReturnValue(86_000)
    expect([await provide(), await provide(), endpoint.requests.length]).toEqual([first, first, 2])
    clock.mockReturnValue(101_001)
    await expect(provide()).rejects.toMatchObject({ code: 'KAFKA_TOKEN_UNAVAILABLE' })
    endpoint.isAway = false
    expect(await provide()).not.toBe(first)
  })

  it.each([
    ['a missing file', () => ({ KAFKA_SSL_CA: '/no/such.pem' }), /KAFKA_SSL_CA: ENOENT/],
    ['a file that is no certificate', () => ({ KAFKA_SSL_CA: kafka.files.key }), /KAFKA_SSL_CA: .*PEM/],
    [
      'a certificate without a key',
      () => ({ KAFKA_SSL_CERT: kafka.files.cert }),
      /KAFKA_SSL_CERT, KAFKA_SSL_KEY: set both/,
    ],
    [
      'a key of another certificate',
      () => ({ KAFKA_SSL_CERT: kafka.files.otherCa, KAFKA_SSL_KEY: kafka.files.key }),
      /KAFKA_SSL_CERT, KAFKA_SSL_KEY: .*mismatch/,
    ],
    [
      'OAUTHBEARER without an endpoint',
      () => ({ KAFKA_SASL_MECHANISM: 'OAUTHBEARER' }),
      /TOKEN_ENDPOINT_URL: must be set/,
    ],
  ] as const)('are refused in the settings because of %s', (_, wrong, sentence) => {
    expect(() => parseConfig({ KAFKA_BROKERS: 'localhost:9092', ...wrong() })).toThrow(sentence)
  })
})
