/** Tests how failures of Postgres are classified: whether the failure ends a call or is retried, and which message operators get. */
import { describe, expect, it } from 'vitest'
import type { ServiceError } from '#shared/lib/error.ts'
import { PostgresProblem, translate } from '#shared/store/postgres/errors.ts'

const failure = (code: string | undefined, message = 'words of the server') =>
  Object.assign(new Error(message), code === undefined ? {} : { code })
const serviceError = (error: unknown) => translate(error).error as ServiceError

describe('the translation of a Postgres error', () => {
  it.each([
    ...['08000', '08003', '08006', '08P01', '25006', '26000', '42P05', '0A000', '25P02', '25P03', '40001', '40P01'],
    ...['53000', '53100', '53200', '53300', '53400', '55P03', '55006', '57000', '57014', '57P01', '57P02', '57P03'],
    ...['57P05', '58000', '58030', '58P01', 'F0000', 'XX000', 'XX001', 'XX002', '28000', '28P01', '3D000', '42501'],
    ...['42P01', '42883', '3F000', 'ECONNRESET', 'EPIPE', 'ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN', 'ETIMEDOUT'],
  ])('maps SQLSTATE or system code %s to overloaded with a remedy', (code) => {
    const error = serviceError(failure(code))
    expect(error).toMatchObject({ code: 'overloaded', isInfrastructure: true, cause: { code } })
    expect((error.cause as PostgresProblem).remediation).not.toBe('')
  })

  it.each([
    'timeout exceeded when trying to connect',
    'Connection terminated unexpectedly',
    'Connection terminated due to connection timeout',
    'Query read timeout',
    'timeout expired',
    'Client has encountered a connection error and is not queryable',
    'The server does not support SSL connections',
  ])('maps the client message "%s" to overloaded', (message) => {
    expect(serviceError(failure(undefined, message))).toMatchObject({ code: 'overloaded', isInfrastructure: true })
  })

  it.each(['22001', '22021', '22P02', '23505', '23514', '42601', '54000'])(
    'returns an error with SQLSTATE %s unchanged',
    (code) => {
      const error = failure(code)
      expect(translate(error)).toMatchObject({ effect: undefined, error })
    },
  )

  it('ignores text of the caller inside the message', () => {
    const error = failure(
      '22P02',
      'invalid input syntax for type json: "no such database, password authentication failed"',
    )
    expect(translate(error).error).toBe(error)
  })

  it.each([
    ['28P01', 'password authentication failed for user "x"', 'password', /user and password/],
    [
      '08P01',
      'server login failed: FATAL password authentication failed for user "x"',
      'password',
      /user and password/,
    ],
    [undefined, 'SASL: SCRAM-SERVER-FIRST-MESSAGE: client password must be a string', 'password', /user and password/],
    ['28000', 'no pg_hba.conf entry for host "10.0.0.1", user "x", database "y"', 'access', /pg_hba/],
    ['28000', 'no pg_hba.conf entry for host "10.0.0.1", no encryption', 'no_encryption', /sslmode/],
    ['3D000', 'database "y" does not exist', 'no_database', /CREATE DATABASE/],
    ['08P01', 'no such database: y', 'no_database', /CREATE DATABASE/],
    ['08P01', 'unsupported startup parameter: options', 'startup_parameter', /search_path/],
    ['08P01', 'no more connections allowed (max_client_conn)', 'too_many_connections', /DATABASE_CONNECTIONS/],
    ['53300', 'sorry, too many clients already', 'too_many_connections', /DATABASE_CONNECTIONS/],
    ['SELF_SIGNED_CERT_IN_CHAIN', 'self-signed certificate in certificate chain', 'tls', /sslrootcert/],
    ['ENOTFOUND', 'getaddrinfo ENOTFOUND db', 'dns', /host/],
    ['ECONNREFUSED', 'connect ECONNREFUSED 127.0.0.1:5432', 'not_listening', /Start Postgres/],
    ['25006', 'cannot execute INSERT in a read-only transaction', 'read_only', /primary/],
    ['42501', 'permission denied for table jobs', 'permission', /GRANT/],
    ['42P01', 'relation "jobs" does not exist', 'schema', /search_path/],
    ['53100', 'could not extend file', 'disk_full', /disk/],
    ['57014', 'canceling statement due to statement timeout', 'slow', /locks/],
    ['08P01', 'query_wait_timeout', 'timeout', /firewalls/],
  ])('maps %s "%s" to the failure class %s with a remedy', (code, message, name, remediation) => {
    const { cause } = serviceError(failure(code, message))
    expect(cause).toBeInstanceOf(PostgresProblem)
    expect(cause).toMatchObject({ facts: { failure: name }, remediation: expect.stringMatching(remediation) })
    expect((cause as PostgresProblem).message).toContain(message)
    if (code && /^[0-9A-Z]{5}$/.test(code)) expect((cause as PostgresProblem).message).toContain(`SQLSTATE ${code}`)
  })
})
