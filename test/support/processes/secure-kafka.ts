/**
 * Starts a real Kafka that requires TLS with client certificates, authenticates users with SASL, and restricts them by access control lists
 * (ACLs).
 */
import { execFile } from 'node:child_process'
import { pbkdf2Sync, randomBytes } from 'node:crypto'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { alterUserScramCredentialsV0, Connection } from '@platformatic/kafka'
import kafkajs, { type AclEntry } from 'kafkajs'
import { createKafkaJs } from '#shared/broker/kafka/classic/client.ts'
import type { KafkaOptions, KafkaTls } from '#shared/broker/kafka/options.ts'
import { type LocalKafka, startLocalKafka } from './kafka.ts'

const run = promisify(execFile)
const ADMIN = { mechanism: 'PLAIN', username: 'admin', password: 'admin' } as const
const JAAS = 'org.apache.kafka.common.security'
const ITERATIONS = 4096

export interface SecureKafka extends AsyncDisposable {
  readonly address: string
  readonly nodes: LocalKafka
  /** Options of the user `admin`, for clients of the test. */
  readonly options: KafkaOptions
  /** Paths of the PEM files of a client. `otherCa`: a certificate authority that signed no broker's certificate. A client that trusts only `otherCa` must reject the brokers. */
  readonly files: Readonly<Record<'ca' | 'cert' | 'key' | 'otherCa', string>>
  readonly tls: KafkaTls
  /** Allows a user the given operations on all topics and groups whose names begin with a prefix. */
  allow(user: string, prefix: string, topics: readonly AclName[], groups: readonly AclName[]): Promise<void>
}
export type AclName = keyof typeof kafkajs.AclOperationTypes

/**
 * Starts Kafka with four users, whose passwords equal their names. `admin` and `sluice` may do everything and log in with PLAIN; `sluice` can
 * also use SCRAM and OAUTHBEARER. `fleet` and `daily` log in with PLAIN, and may do only the operations of {@link SecureKafka.allow}.
 *
 * @param nodes Number of brokers, each of which is also a controller.
 * @param more Additional lines of server.properties.
 */
export async function startSecureKafka(nodes = 1, more = ''): Promise<SecureKafka> {
  const directory = await mkdtemp(join(tmpdir(), 'sluice-kafka-secure-'))
  const files = await makeCertificates(directory)
  const kafka = await startLocalKafka(nodes, (await settings(directory, files)) + more, nodes)
  const [ca, cert, key] = await Promise.all([files.ca, files.cert, files.key].map((file) => readFile(file, 'utf8')))
  const tls = { ca, cert, key } as KafkaTls
  await addScramUser(kafka.address, tls, 'sluice')
  const options = { ...optionsOf(kafka.address, tls), sasl: ADMIN }
  const admin = createKafkaJs(options).admin()
  return {
    address: kafka.address,
    nodes: kafka,
    options,
    files,
    tls,
    async allow(user, prefix, topics, groups) {
      const entries = [
        ...topics.map((operation) => aclOf(user, prefix, 'TOPIC', operation)),
        ...groups.map((operation) => aclOf(user, prefix, 'GROUP', operation)),
      ]
      await admin.connect()
      await admin.createAcls({ acl: entries })
      await admin.disconnect()
    },
    async [Symbol.asyncDispose]() {
      await kafka.stop()
      await rm(directory, { recursive: true, force: true })
    },
  }
}

/** Starts a token endpoint (RFC 6749) that issues unsigned tokens. Kafka accepts them if no validator is configured. */
export async function startTokenEndpoint(lifetimeS = 3_600) {
  const requests: { readonly body: string; readonly authorization: string | undefined }[] = []
  const endpoint = { isAway: false }
  const server = createServer(async (req, res) => {
    let body = ''
    for await (const chunk of req) body += chunk
    requests.push({ body, authorization: req.headers.authorization })
    if (endpoint.isAway) return void res.writeHead(503).end()
    const isKnown = req.headers.authorization === `Basic ${Buffer.from('sluice:sluice').toString('base64')}`
    const nowS = Date.now() / 1_000
    const claims = { sub: 'sluice', iat: nowS, exp: nowS + lifetimeS }
    const encode = (part: object) => Buffer.from(JSON.stringify(part)).toString('base64url')
    const answer = isKnown
      ? { access_token: `${encode({ alg: 'none' })}.${encode(claims)}.`, expires_in: lifetimeS, token_type: 'Bearer' }
      : { error: 'invalid_client' }
    res.writeHead(isKnown ? 200 : 401, { 'content-type': 'application/json' }).end(JSON.stringify(answer))
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/token`
  return Object.assign(endpoint, { url, requests, [Symbol.asyncDispose]: async () => void server.close() })
}

function optionsOf(address: string, tls: KafkaTls): KafkaOptions {
  const none = { client: 'classic', prefix: '', topics: [], clientId: 'test', onProblem: () => undefined } as const
  return { ...none, brokers: address.split(','), tls }
}

function aclOf(user: string, prefix: string, resource: 'TOPIC' | 'GROUP', operation: AclName): AclEntry {
  return {
    resourceType: kafkajs.AclResourceTypes[resource],
    resourceName: prefix,
    resourcePatternType: kafkajs.ResourcePatternTypes.PREFIXED,
    principal: `User:${user}`,
    host: '*',
    operation: kafkajs.AclOperationTypes[operation],
    permissionType: kafkajs.AclPermissionTypes.ALLOW,
  }
}

async function settings(directory: string, files: Awaited<ReturnType<typeof makeCertificates>>): Promise<string> {
  const store = join(directory, 'broker.pem')
  await writeFile(store, (await readFile(files.brokerKey, 'utf8')) + (await readFile(files.brokerCert, 'utf8')))
  const login = ['admin', 'sluice', 'fleet', 'daily'].map((user) => `user_${user}="${user}"`).join(' ')
  const jaas = {
    plain: `${JAAS}.plain.PlainLoginModule required username="admin" password="admin" ${login};`,
    'scram-sha-256': `${JAAS}.scram.ScramLoginModule required;`,
    'scram-sha-512': `${JAAS}.scram.ScramLoginModule required;`,
    oauthbearer: `${JAAS}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="admin";`,
  }
  return [
    'listener.security.protocol.map=PLAINTEXT:SASL_SSL,CONTROLLER:PLAINTEXT',
    'inter.broker.listener.name=PLAINTEXT',
    'sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER',
    'sasl.mechanism.inter.broker.protocol=PLAIN',
    ...Object.entries(jaas).map(([name, line]) => `listener.name.plaintext.${name}.sasl.jaas.config=${line}`),
    'ssl.keystore.type=PEM',
    `ssl.keystore.location=${store}`,
    'ssl.truststore.type=PEM',
    `ssl.truststore.location=${files.ca}`,
    'listener.name.plaintext.ssl.client.auth=required',
    'authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer',
    'super.users=User:admin;User:sluice;User:ANONYMOUS',
    '',
  ].join('\n')
}

async function makeCertificates(directory: string) {
  const path = (name: string) => join(directory, name)
  const makeCa = async (name: string) => {
    const files = ['-keyout', path(`${name}.key`), '-out', path(`${name}.pem`)]
    await run('openssl', [
      'req',
      '-x509',
      '-newkey',
      'rsa:2048',
      '-nodes',
      '-days',
      '2',
      '-subj',
      `/CN=${name}`,
      ...files,
    ])
  }
  const sign = async (name: string, extension: string) => {
    const request = ['-keyout', path(`${name}.key`), '-out', path(`${name}.csr`)]
    await run('openssl', ['req', '-newkey', 'rsa:2048', '-nodes', '-subj', `/CN=${name}`, ...request])
    await writeFile(path(`${name}.ext`), extension)
    const ca = ['-CA', path('ca.pem'), '-CAkey', path('ca.key'), '-CAcreateserial', '-days', '2']
    const files = ['-in', path(`${name}.csr`), '-out', path(`${name}.pem`), '-extfile', path(`${name}.ext`)]
    await run('openssl', ['x509', '-req', ...ca, ...files])
  }
  await Promise.all([makeCa('ca'), makeCa('other')])
  await sign('broker', 'subjectAltName=IP:127.0.0.1,DNS:localhost')
  await sign('client', 'extendedKeyUsage=clientAuth')
  return {
    ca: path('ca.pem'),
    otherCa: path('other.pem'),
    cert: path('client.pem'),
    key: path('client.key'),
    brokerCert: path('broker.pem'),
    brokerKey: path('broker.key'),
  }
}

async function addScramUser(address: string, tls: KafkaTls, name: string): Promise<void> {
  const [host = '', port] = (address.split(',')[0] ?? '').split(':')
  const connection = new Connection('test', { tls: { ...tls }, sasl: ADMIN })
  await connection.connect(host, Number(port))
  // Each user is created in a request of its own, because Kafka refuses a request that contains a user twice.
  for (const [digest, mechanism, bytes] of [
    ['sha256', 1, 32],
    ['sha512', 2, 64],
  ] as const) {
    const salt = randomBytes(16)
    const saltedPassword = pbkdf2Sync(name, salt, ITERATIONS, bytes, digest)
    const user = { name, mechanism, iterations: ITERATIONS, salt, saltedPassword }
    await alterUserScramCredentialsV0.api.async(connection, [], [user])
  }
  await connection.close()
}
