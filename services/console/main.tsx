import { render } from 'preact'
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
if (place) render(<Console />, place)
