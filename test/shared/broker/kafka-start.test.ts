/** Tests of processes that cannot start because of a problem with Kafka. The log and the error message must name the cause and its remedy. */
import { execFile } from 'node:child_process'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, inject, it } from 'vitest'
import { openKafkaBroker } from '#shared/broker/kafka/kafka.ts'
import type { KafkaOptions } from '#shared/broker/kafka/options.ts'
import { openLog } from '#shared/log/log.ts'
import { openWhenAvailable } from '#shared/process/wait-for-dependency.ts'
import { type LocalKafka, startLocalKafka, whyNoLocalKafka } from '../../support/processes/kafka.ts'

const missing = inject('kafka') === null ? 'no Kafka' : await whyNoLocalKafka()
const run = promisify(execFile)
const LOGIN = { mechanism: 'PLAIN', username: 'sluice', password: 'right' } as const
/** Maximum time until a start with a permanent error fails. */
const REFUSED_MS = 15_000

/** Returns Kafka settings that change the protocol of the listener, for example to TLS. */
function listener(protocol: string, lines: readonly string[]): string {
  return [`listener.security.protocol.map=PLAINTEXT:${protocol},CONTROLLER:PLAINTEXT`, ...lines, ''].join('\n')
}

const SASL = listener('SASL_PLAINTEXT', [
  'sasl.enabled.mechanisms=PLAIN',
  'sasl.mechanism.inter.broker.protocol=PLAIN',
  'listener.name.plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required ' +
    'username="admin" password="admin" user_admin="admin" user_sluice="right";',
])

/** Starts a Kafka with TLS and a self-signed certificate. */
async function startWithTls(directory: string): Promise<LocalKafka> {
  const store = join(directory, 'store.p12')
  const keytool = process.env.JAVA_HOME ? join(process.env.JAVA_HOME, 'bin/keytool') : 'keytool'
  const key = ['-genkeypair', '-keyalg', 'RSA', '-alias', 'kafka', '-dname', 'CN=localhost']
  await run(keytool, [...key, '-storetype', 'PKCS12', '-storepass', 'secret', '-keystore', store])
  const lines = ['keystore', 'truststore'].flatMap((name) => [
    `ssl.${name}.type=PKCS12`,
    `ssl.${name}.location=${store}`,
    `ssl.${name}.password=secret`,
  ])
  return await startLocalKafka(1, listener('SSL', [...lines, 'ssl.endpoint.identification.algorithm=']))
}

/**
 * Connects to Kafka as a starting process does. The connection must fail.
 *
 * @returns The error message, and the time until the failure
 */
async function startOn(brokers: string, more: Partial<KafkaOptions>) {
  const startedAt = performance.now()
  const options = { brokers: [brokers], prefix: '', topics: [], clientId: 'test', onProblem: () => undefined }
  const open = () => openKafkaBroker({ client: 'share', ...options, ...more })
  const message = await openWhenAvailable('Kafka', open, openLog('silent', 'test')).then(
    (broker) => broker.close().then(() => 'started'),
    (error: Error) => error.message,
  )
  return { message, tookMs: performance.now() - startedAt }
}

let directory: string
let sasl: LocalKafka
let tls: LocalKafka
beforeAll(async () => {
  if (missing !== undefined) return
  directory = await mkdtemp(join(tmpdir(), 'sluice-kafka-tls-'))
  ;[sasl, tls] = await Promise.all([startLocalKafka(1, SASL), startWithTls(directory)])
})
afterAll(async () => {
  await Promise.all([sasl?.stop(), tls?.stop()])
  if (directory) await rm(directory, { recursive: true, force: true })
})

interface Refused {
  readonly name: string
  readonly address: () => string
  readonly login?: KafkaOptions['sasl']
  readonly tls?: KafkaOptions['tls']
  readonly sentence: RegExp
}

const REFUSED: readonly Refused[] = [
  {
    name: 'a wrong password',
    address: () => sasl.address,
    login: { ...LOGIN, password: 'wrong' },
    sentence: /user or the password.*KAFKA_PASSWORD/,
  },
  {
    name: 'a mechanism that is not enabled',
    address: () => sasl.address,
    login: { ...LOGIN, mechanism: 'SCRAM-SHA-256' },
    sentence: /SASL mechanism.*sasl\.enabled\.mechanisms/,
  },
  {
    name: 'a login on a listener without SASL',
    address: () => inject('kafka') ?? '',
    login: LOGIN,
    sentence: /does not support SASL.*KAFKA_SASL_MECHANISM/,
  },
  {
    name: 'a certificate that is not trusted',
    address: () => tls.address,
    tls: {},
    sentence: /certificate.*KAFKA_SSL_CA/,
  },
]

describe.skipIf(missing !== undefined).each(['share', 'classic'] as const)(
  'the connection to Kafka at the start, client %s',
  (client) => {
    it('succeeds with a correct user and password', async () => {
      expect((await startOn(sasl.address, { client, sasl: LOGIN })).message).toBe('started')
    })

    it.each(REFUSED)('fails within seconds with the cause and the remedy for $name', async (refused) => {
      const { address, login, tls, sentence } = refused
      const { message, tookMs } = await startOn(address(), {
        client,
        ...(tls && { tls }),
        ...(login && { sasl: login }),
      })
      expect(message).toMatch(sentence)
      expect(tookMs).toBeLessThan(REFUSED_MS)
    })

    it.each([
      ['a host name without a DNS entry', 'no-such-host.invalid:9092', /DNS/, /KAFKA_BROKERS/],
      ['a closed port', '127.0.0.1:1', /No server listens.*ECONNREFUSED/, /kafka-local\.sh/],
    ])('fails with a transient error that names cause and remedy for %s', async (_, address, problem, remediation) => {
      const options = { brokers: [address], prefix: '', topics: [], clientId: 'test', onProblem: () => undefined }
      const error = await openKafkaBroker({ client, ...options }).catch((thrown: unknown) => thrown)
      expect(error).toMatchObject({ code: 'overloaded', cause: { isPermanent: false } })
      const { cause } = error as { cause: { message: string; remediation: string } }
      expect(cause.message).toMatch(problem)
      expect(cause.remediation).toMatch(remediation)
    })
  },
)
