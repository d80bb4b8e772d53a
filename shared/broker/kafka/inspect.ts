import { ServiceError } from '#shared/lib/error.ts'
import type { KafkaCluster } from './cluster.ts'
import type { KafkaOptions } from './options.ts'
import { overloaded } from './sender.ts'
import { type BootProblem, lateFailover, readable } from './topics.ts'

/** First version of ShareFetch that returns no more records than requested (Kafka 4.2, KIP-1206). */
const SHARE_FETCH = { key: 78, version: 2 }
const SHARE_FEATURE = 'share.version'

export interface KafkaFacts {
  readonly brokers: number
  readonly topics: number
  readonly missing: readonly string[]
  readonly hasShareGroups: boolean
  /** Warning about slow failover. Undefined if failover is quick, if there is only one broker, or if the setting cannot be read. */
  readonly lateFailover: BootProblem | undefined
}

export async function inspectKafka(options: KafkaOptions): Promise<KafkaFacts> {
  const { KafkaCluster } = await import('./cluster.ts')
  const { PlatformaticAdmin } = await import('./admin.ts')
  const { isTransient } = await import('./errors.ts')
  const cluster = new KafkaCluster(options)
  const admin = new PlatformaticAdmin(cluster, options)
  try {
    const names = options.topics.map(({ name }) => options.prefix + name)
    await orUnavailable(cluster.follow(names), isTransient)
    const settings = await readable(admin.brokerSettings(), 'broker', options)
    return {
      brokers: cluster.nodeIds.length,
      topics: names.length,
      missing: names.filter((name) => cluster.partitions(name) === 0),
      hasShareGroups: await hasShareGroups(cluster),
      lateFailover: lateFailover(cluster.nodeIds.length, settings),
    }
  } finally {
    await admin.close()
    await cluster.close()
  }
}

/**
 * Whether share groups are enabled. A cluster that was upgraded from a version before 4.2 lists the requests of share groups as supported. The
 * cluster refuses them until the feature `share.version` is enabled.
 */
export async function hasShareGroups(cluster: KafkaCluster): Promise<boolean> {
  const { apiKeys, finalizedFeatures } = await cluster.versions()
  const { key, version } = SHARE_FETCH
  const isKnown = apiKeys.some(({ apiKey, maxVersion }) => apiKey === key && maxVersion >= version)
  const feature = finalizedFeatures?.find(({ name }) => name === SHARE_FEATURE)
  return isKnown && (feature?.maxVersionLevel ?? 0) > 0
}

interface FailureClass {
  readonly isPermanent?: boolean
  /**
   * Matches error codes of Node, and error types and messages of kafkajs and @platformatic/kafka. Both libraries wrap the cause in a connection
   * error.
   */
  readonly signs: RegExp
  readonly problem: string
  readonly remediation: string
}

/** Reasons why a cluster cannot be used at the start. The first match is reported. */
const CLASSES: readonly FailureClass[] = [
  {
    isPermanent: true,
    signs: /KAFKA_TOKEN_REFUSED/,
    problem: 'The token endpoint for Kafka gives no token',
    remediation:
      'Correct KAFKA_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL, the client id in KAFKA_USERNAME, the client secret in KAFKA_PASSWORD and KAFKA_SASL_OAUTHBEARER_SCOPE.',
  },
  {
    signs: /KAFKA_TOKEN_UNAVAILABLE/,
    problem: 'The token endpoint for Kafka does not answer',
    remediation:
      'Check KAFKA_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL and the network. For a private certificate authority, set NODE_EXTRA_CA_CERTS.',
  },
  {
    isPermanent: true,
    signs:
      /ALERT_(CERTIFICATE_REQUIRED|BAD_CERTIFICATE|UNKNOWN_CA|CERTIFICATE_UNKNOWN|CERTIFICATE_EXPIRED|HANDSHAKE_FAILURE)/,
    problem: 'Kafka refuses the client certificate',
    remediation:
      'Set KAFKA_SSL_CERT and KAFKA_SSL_KEY to a certificate that the brokers trust (ssl.client.auth, ssl.truststore).',
  },
  {
    isPermanent: true,
    signs: /UNSUPPORTED_SASL_MECHANISM|not support the requested SASL mechanism/,
    problem: 'Kafka does not offer the SASL mechanism of KAFKA_SASL_MECHANISM',
    remediation: 'Set KAFKA_SASL_MECHANISM to one of the sasl.enabled.mechanisms of the brokers.',
  },
  {
    isPermanent: true,
    signs: /ILLEGAL_SASL_STATE|given the current SASL state/,
    problem: 'This Kafka listener does not support SASL',
    remediation: 'Unset KAFKA_SASL_MECHANISM, or set the port of the SASL listener in KAFKA_BROKERS.',
  },
  {
    isPermanent: true,
    signs: /SASL.*authentication failed|SASLAuthenticationError|Invalid username or password/i,
    problem: 'Kafka rejects the user or the password (SASL)',
    remediation:
      'Correct KAFKA_USERNAME and KAFKA_PASSWORD. Kafka keeps SCRAM users by mechanism, so check KAFKA_SASL_MECHANISM as well.',
  },
  {
    isPermanent: true,
    signs:
      /SELF_SIGNED_CERT|UNABLE_TO_(GET|VERIFY)|CERT_(HAS_EXPIRED|NOT_YET_VALID|UNTRUSTED|REJECTED)|ALTNAME_INVALID/,
    problem: 'The TLS certificate of Kafka is not trusted',
    remediation:
      'Set KAFKA_SSL_CA to the file of its CA. The certificate must be valid now and contain the hosts of KAFKA_BROKERS.',
  },
  {
    isPermanent: true,
    signs: /Broker requires TLS/,
    problem: 'This Kafka listener requires TLS',
    remediation: 'Set KAFKA_TLS=true, or set the port of a listener without TLS in KAFKA_BROKERS.',
  },
  {
    signs: /before secure TLS|TLS handshake failed|wrong version number|ERR_SSL/i,
    problem: 'The TLS connection to Kafka failed',
    remediation:
      'Set KAFKA_TLS=false if this listener has no TLS, or set the port of the TLS listener in KAFKA_BROKERS.',
  },
  {
    signs: /ENOTFOUND|EAI_AGAIN/,
    problem: 'The host name of Kafka has no address (DNS)',
    remediation: 'Correct the host in KAFKA_BROKERS, or the DNS of this machine.',
  },
  {
    signs: /ECONNREFUSED/,
    problem: 'No server listens at the address of Kafka',
    remediation: 'Start Kafka (to try one out: deploy/kafka-local.sh start), or correct KAFKA_BROKERS.',
  },
  {
    signs: /Connection closed|Closed connection|ECONNRESET/,
    problem: 'Kafka closes the connection; its listener probably requires TLS or SASL',
    remediation:
      'Set KAFKA_TLS, or KAFKA_SASL_MECHANISM, KAFKA_USERNAME and KAFKA_PASSWORD, as this listener requires.',
  },
  {
    signs: /timed out|timeout/i,
    problem: 'Kafka does not respond',
    remediation:
      'Check the address in KAFKA_BROKERS, firewalls, and that advertised.listeners names addresses that this machine reaches.',
  },
]

class KafkaUnavailableError extends Error {
  readonly remediation: string
  readonly isPermanent: boolean

  constructor({ problem, remediation, isPermanent = false }: FailureClass, cause: unknown) {
    super(`${problem}: ${deepestOf(cause).message}`)
    this.remediation = remediation
    this.isPermanent = isPermanent
  }
}

/**
 * Converts a connection failure to `overloaded`, with the reason as its cause. Returns a ServiceError unchanged, and undefined for any other error.
 *
 * @param isTransient Whether the caller regards the error as temporary. If false, then only known permanent connection failures are converted, such as
 * a rejected password
 */
export function unavailable(error: unknown, isTransient: boolean): ServiceError | undefined {
  if (error instanceof ServiceError) return error
  const signs = signsOf(error)
  const found = CLASSES.find((each) => each.signs.test(signs))
  if (!found?.isPermanent && !isTransient) return undefined
  const message = error instanceof Error ? error.message : String(error)
  return overloaded(message, found ? new KafkaUnavailableError(found, error) : error)
}

async function orUnavailable<T>(asked: Promise<T>, isTransient: (error: unknown) => boolean): Promise<T> {
  return await asked.catch((error: unknown) => {
    throw unavailable(error, isTransient(error)) ?? error
  })
}

interface Parts {
  readonly code?: unknown
  readonly type?: unknown
  readonly name?: string
  readonly message?: string
  readonly cause?: unknown
  readonly errors?: readonly unknown[]
}

function signsOf(error: unknown, depth = 0): string {
  if (!error || depth > 8) return ''
  const { code, type, name, message, cause, errors = [] } = error as Parts
  return [code, type, name, message, ...[cause, ...errors].map((below) => signsOf(below, depth + 1))].join(' ')
}

function deepestOf(error: unknown, depth = 0): Error {
  const { cause, errors = [] } = error as Parts
  const below = cause ?? errors[0]
  return below instanceof Error && depth < 8 ? deepestOf(below, depth + 1) : (error as Error)
}
