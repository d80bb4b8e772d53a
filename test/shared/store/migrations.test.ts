import { describe, expect, it } from 'vitest'
import { loadMigrations } from '#shared/store/sql/migrations.ts'

/**
 * The first 16 characters of each migration's hash. A database refuses to start if the file of an applied migration has changed, even in a comment.
 * Add a line for a new migration; never change a line of a released migration.
 */
const HASHES = {
  postgres: {
    '001-schema.sql': '70b24e16dc3d22e3',
    '002-own-jobs.sql': '861dda3a57276886',
    '003-usage-hours.sql': '61b1ff798a6b8a63',
    '004-requests.sql': 'bf56b7c9aa5db6db',
    '005-history.sql': '8439d2dad0ede71b',
    '006-budget-alerts.sql': '70af93e6b95f4c61',
    '007-request-servers.sql': 'd7e7aca2baf46708',
    '008-request-errors.sql': 'eec21498d3b8c3b2',
    '009-request-bodies.sql': 'a9f81ee10c72e833',
    '010-request-traces.sql': '8603cc9813d9342d',
    '011-pending-deliveries.sql': '8aba18a9da356b8b',
    '012-request-bodies-expiry.sql': '313c0da26e19fa7e',
    '013-request-previews.sql': 'fc0d7546c75d60c2',
    '014-request-attempts.sql': '9087deba86acb8bf',
    '015-request-lists.sql': 'b271abc8e14505b8',
    '016-request-batch-counts.sql': '859cec65c6728302',
  },
  sqlite: {
    '001-schema.sql': 'bb760fa899bacdce',
    '002-own-jobs.sql': '458dc14700f75194',
    '003-usage-hours.sql': '3f88573e6ceec26e',
    '004-requests.sql': '81aba8c315f774cd',
    '005-history.sql': '4320a98e95df39ed',
    '006-budget-alerts.sql': '70af93e6b95f4c61',
    '007-request-servers.sql': 'd7e7aca2baf46708',
    '008-request-errors.sql': 'eec21498d3b8c3b2',
    '009-request-bodies.sql': '58f1ed305bb8274e',
    '010-request-traces.sql': 'a09fdba3259a5131',
    '011-pending-deliveries.sql': '0c52b3493a02ba9a',
    '012-request-bodies-expiry.sql': '5e7931ab4b2c098a',
    '013-request-previews.sql': 'fc0d7546c75d60c2',
    '014-request-attempts.sql': '0e8cbd592fadd862',
    '015-request-lists.sql': 'c79cd42d9c53ac0e',
    '016-request-batch-counts.sql': 'e5e2314e2a50772a',
  },
}

describe.each(['postgres', 'sqlite'] as const)('the migrations of %s', (dialect) => {
  it('are unchanged since their release, because databases have applied them', () => {
    const hashes = loadMigrations(dialect).map(({ name, hash }) => [name, hash.slice(0, 16)])
    expect(Object.fromEntries(hashes)).toEqual(HASHES[dialect])
  })
})
