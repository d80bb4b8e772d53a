import { render } from 'preact'
import { shareKey } from './api/client.ts'
import { Console } from './console.tsx'
import './styles/base.css'
import './styles/layout.css'
import './styles/parts.css'
import './styles/table.css'
import './styles/screens.css'
import './styles/fleet.css'
import './styles/requests.css'
import './styles/playground.css'
import './styles/keys.css'
import './styles/usage.css'

const place = document.getElementById('console')
// A new tab receives its key before the first rendering, so that the sign-in page does not flash.
await shareKey()
if (place) render(<Console />, place)
